"""What coordinator and sites may say to each other, as types: what comes from another institution is checked whole."""
