"""References to the inner chunks of finished stores, where they lie: files of kerchunk, repositories of
icechunk. Nothing is copied, and nothing in a store is changed.

    virtual_tree        the groups and arrays to be seen, of one store; of several, joined along an axis
    chunk_ranges        where the chunks of an array are: ranges of shard files, each of one state of the file
    kerchunk_files, icechunk_repository    what they are written into
    file_record         the state of each file that is referred to: has it changed since?
    make_references     all of that, as one job
"""
