"""The demonstration: a proof whose deeds follow a script that people can watch."""
