"""What all topologies share: messaging, spool, secure sums, agreement on columns, checks of answers."""
