"""The fixtures of every attack, see `attack_fixture`."""

from attack_fixture import attempt, stranger

__all__ = ["attempt", "stranger"]
