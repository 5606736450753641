"""What a hospital decides: its policy, its approvals, its privacy ledgers, a study in plain words."""
