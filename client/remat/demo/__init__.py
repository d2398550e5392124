"""`remat demo`: real models trained under a memory budget, beside the unmodified ones, claim by claim."""
