"""The tests mirror the package; code they share is imported as ``tests.folder.module``."""
