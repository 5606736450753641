"""Rules for what may leave a site: no figure of a few patients, nor one from which it could be derived."""
