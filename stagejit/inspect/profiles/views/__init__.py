"""What a profile is shown as: pages, pictures, and files for other tools."""
