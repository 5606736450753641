"""`decision` of results.json: what page one of a report says to those who decide, with the values behind each sentence.

Which way of training it is about is fixed by the study, before any figure; the comparison is the corrected one that the
rest of the report shows. Docs: docs/reference/results.md.
"""
