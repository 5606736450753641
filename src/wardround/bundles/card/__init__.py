"""The card of a bundle: what it is, what it is for, and how well it does, as data and as Markdown."""
