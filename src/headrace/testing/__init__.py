"""Contracts that your own backends, codecs and engines can pass; needs the extra
``headrace[testing]``."""
