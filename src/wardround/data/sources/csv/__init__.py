"""CSV files of hospitals: text first, then types, columns and classes over all hospitals together."""
