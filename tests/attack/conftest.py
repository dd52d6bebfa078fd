"""The fixtures of every attack, see `attack_fixture`."""

from attack_fixture import attempt, removing, stranger

__all__ = ["attempt", "removing", "stranger"]
