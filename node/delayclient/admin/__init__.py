"""The admin: cancels, reschedules, and what an administrator sees."""
