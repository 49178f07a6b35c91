"""Plans carried out: here the moves that a pool decides will be made with real weights, on real machines."""
