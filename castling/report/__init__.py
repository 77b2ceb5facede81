"""What results look like: tables and figures."""
