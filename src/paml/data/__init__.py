"""Data: from raw tables (sources) by the paper's protocol to a prepared data set, and from there to task batches."""
