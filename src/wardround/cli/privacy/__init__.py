"""Verbs about privacy: plan, spent, attack, and the audit log."""
