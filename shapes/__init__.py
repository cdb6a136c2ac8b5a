"""Model config -> the GEMMs that the model runs."""
