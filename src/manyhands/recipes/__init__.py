"""Recipes: complete, runnable training programs, built in or written by a user."""

from __future__ import annotations

from manyhands.recipes.recipe import Recipe

__all__ = ["Recipe"]
