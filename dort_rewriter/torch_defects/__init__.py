"""Wrong answers of torch that are repaired or refused here, one file each."""
