"""The programs that stagejit is measured on."""
