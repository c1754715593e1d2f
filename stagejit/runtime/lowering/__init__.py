"""Where stagejit sits inside JAX: from an equation that is ours to StableHLO."""
