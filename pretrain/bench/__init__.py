"""What this machine does with a setting, measured in about a minute."""
