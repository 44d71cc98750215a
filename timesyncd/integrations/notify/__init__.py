"""Sends findings to people by apprise. `sender` needs the notify extra."""
