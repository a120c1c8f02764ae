"""Jobs on real data that use the installed package from the outside, as a user would."""
