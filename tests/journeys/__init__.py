"""What a new user does, with the wheel in an environment of its own: ``nox -s journeys``."""
