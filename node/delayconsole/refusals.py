"""Why nobody is let in."""

from __future__ import annotations


class SignInRefused(Exception):
    """What was shown does not let anybody in; says why. It becomes the sign-in page, with that sentence."""
