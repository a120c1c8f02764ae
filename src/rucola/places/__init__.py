"""Where files are that users name by a path or a URL: a directory, or an object store.

For example::

    from rucola.places.storage import open_place

    place = open_place("./table")  # or s3://bucket/table
    place.make()
    place.write("file", b"whole or not at all")
    print(place.read("file"))
"""
