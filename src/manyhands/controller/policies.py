"""What the controller decides, in one pure function: this placement and this moment, what next?

The order matters. Facts first (who came, who died, what is in step), then what safety allows
without those that are lost, then copies that lack, and evenness last, when all else is calm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from manyhands.controller import balance, copies, draining, failover
from manyhands.controller.copies import InStep, Suspicion
from manyhands.controller.view import View
from manyhands.parameter_server.placement import Joining, Member, Placement


@dataclass(frozen=True, kw_only=True, slots=True)
class Reports:
    """What was heard since the last decision. Anything of another time is ignored."""

    arrived: tuple[Member, ...] = ()
    dead: tuple[tuple[int, str], ...] = ()  # server, incarnation
    drains: Mapping[int, bool] = field(default_factory=dict)
    in_step: tuple[InStep, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    overdue: tuple[tuple[int, Joining], ...] = ()


def decide(
    placement: Placement, view: View, reports: Reports, *, calm: bool = False
) -> Placement | None:
    """The next placement, one version on; None when this one is as good as it gets now."""
    draft = replace(placement, version=placement.version + 1)
    for server, incarnation in reports.dead:
        draft = failover.bury(draft, server, incarnation)
    for member in reports.arrived:
        draft = failover.admit(draft, member)
    draft = draining.mark(draft, reports.drains)
    view = _of_members(view, draft)
    draft = copies.accept_in_step(draft, reports.in_step)
    draft = copies.drop_suspects(draft, reports.suspicions, view)
    draft = copies.abandon(draft, reports.overdue)
    draft = failover.lose(draft, view)
    draft = draining.lead_away(draft, view)
    draft = copies.trim(draft, view)
    draft = copies.repair(draft, view)
    if calm and _is_same(draft, placement) and balance.is_settled(draft, view):
        draft = _evened(draft, view)  # never in one step with a loss: each move is a new lease
    draft = copies.renew_joins(draft, placement)
    return None if _is_same(draft, placement) else draft


def _is_same(draft: Placement, placement: Placement) -> bool:
    return draft.members == placement.members and draft.buckets == placement.buckets


def _of_members(view: View, placement: Placement) -> View:
    """Without servers that are heard and no members (any more)."""
    members = placement.members.keys()
    fresh = None if view.fresh is None else view.fresh & members
    return replace(view, alive=view.alive & members, fresh=fresh)


def _evened(draft: Placement, view: View) -> Placement:
    moving = balance.rebalance(draft, view)
    return moving if moving != draft else balance.share_leading(draft, view)
