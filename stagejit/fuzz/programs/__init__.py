"""Random whole programs: `generate.random_program` writes them, `verdicts.judge` runs them."""
