"""Messages between coordinator and sites, as types: what comes from another institution is checked whole."""
