"""Who is alive, which server holds which bucket, under which lease (Adam, section 3.3.3)."""
