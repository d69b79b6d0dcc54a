"""The demonstration: a proof by a script that a person can follow."""
