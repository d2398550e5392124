"""The SDK and the command line."""
