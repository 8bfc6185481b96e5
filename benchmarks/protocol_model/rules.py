"""The rules of the protocol that can be broken one at a time, to see that the search notices.

Every rule is a field that is True in the protocol. A mutation is the protocol with one of them
False. A search that finds nothing wrong says little; one that finds every mutation says that it
looks where mistakes would be.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Rules:
    """What servers, primaries and the controller do. All True: the protocol."""

    fence: bool = True  # a copy refuses frames of a lease below the highest it knows
    wait_for_copies: bool = True  # a push is acknowledged when every required copy has it
    promote_mirrors_only: bool = True  # never a joining copy
    own_incarnation_only: bool = True  # a server ignores placements that name a predecessor
    bound_connections: bool = True  # a connection names the incarnation that it is meant for
    entry_of_report: bool = True  # the controller compares `since` of an in_step report
    lease_of_report: bool = True  # and its lease
    entry_of_event: bool = (
        True  # the primary tells of the entry that got in step, not of the present
    )
    new_entry_new_start: bool = True  # another `since` is another entry: align again
    compare_and_swap: bool = True  # a placement is derived from the one that it replaces
    raise_lease: bool = True  # another primary, another lease
    required_when_sent: bool = True  # a joining copy is required from its snapshot's sending on
    in_step_when_acknowledged: bool = True  # and reported when it has acknowledged the snapshot
    moved_on_since_align: bool = True  # "same" answers the position told, not the present one
    required_once_reported: bool = True  # also when the connection is lost afterwards
    align_at_new_lease: bool = True  # what a copy acknowledged under another lease is forgotten
    acks_after_align_only: bool = True  # acknowledgements from before an Align do not count
    lease_in_position: bool = True  # equal versions under two leases are not the same contents
    lease_in_update: bool = True  # an update names the whole position at which it applies
    update_at_position: bool = True  # an update applies at the position that it was sent for
    log_in_snapshot: bool = True  # the last sequence of every client travels with the contents
    log_in_update: bool = True  # and with a replicated update
    newer_contents_stay: bool = True  # a late snapshot does not undo what its lease did since
    recognise_replays: bool = True  # a number at or below the client's last was applied before
    wait_for_controller: bool = True  # a primary never stops waiting for a mirror by itself
    keep_contents: bool = (
        True  # a server that leaves a bucket does not give its memory back at once
    )
    replays_wait: bool = True  # a replay is answered when its update is safe
    controller_sees_restarts: bool = True  # a member's new incarnation leaves every bucket first


PROTOCOL = Rules()


def mutations() -> dict[str, Rules]:
    """The protocol with one rule broken, by the rule's name."""
    return {field.name: replace(PROTOCOL, **{field.name: False}) for field in fields(Rules)}
