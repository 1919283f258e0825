"""Unit tests of the rules, generated: at least one that fires and one that does not for every alert."""
