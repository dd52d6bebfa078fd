"""Builds adapters, controller, journal and notices from the site's settings. Called by the command line."""
