"""Decisions: who stays, who leaves, who is let in."""
