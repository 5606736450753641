"""Bundles: what a hospital deploys. One site's model, its preparation, and a card that says what they are."""
