/* The tokens of a vocabulary grouped by their characters: a mask allows or forbids whole groups (slices) at
 * once.
 *
 * A place inside a string allows nearly every token that is plain text. Reading one character of a class
 * leads from place to place; where all characters of a class lead on alike, the tokens made of them are
 * allowed up to some number of characters, without a look at each (the idea is llguidance's, which calls them
 * slices). The others are walked: tokens that begin with other bytes, and bytes after the plain characters at
 * the head of a token: few different tails.
 *
 * Made by slices.c for vocabulary.c; read by mask.c, summary.c and walk.c. Immutable. */
#pragma once

#include <stdbool.h>

#include "client/text/grammar/tries.h"

/* Characters that stand for themselves in a JSON string, and narrower classes of them; a class comes before
 * what is in it. */
enum slice_class {
    SLICE_PLAIN,   /* all but control characters, the quote and the backslash */
    SLICE_ASCII,   /* of those, below 0x7f */
    SLICE_SPACED,  /* [A-Za-z0-9_ ] */
    SLICE_WORD,    /* [A-Za-z0-9_] */
    SLICE_LETTERS, /* [A-Za-z] */
    SLICE_LOWER,
    SLICE_UPPER,
    SLICE_DIGITS,
    SLICE_CLASSES
};
#define SLICE_CHARS  32 /* tokens with more plain characters at their head are in no slice */
#define SLICE_COUNTS 12 /* each n up to this has a mask of the tokens of at most n characters */

struct slice {
    enum slice_class parent;
    uint32_t tokens, most; /* tokens of the class alone; characters of the longest of them */
    uint32_t *all;         /* [words] bits of them */
    uint32_t *upto;        /* [SLICE_COUNTS][words]: of those of at most 1 + i characters */
    /* [tokens] ids by rising characters; those of n: [length_at[n] .. length_at[n + 1]) */
    uint32_t *by_length;
    uint32_t length_at[SLICE_CHARS + 2];
    /* Tokens to walk where the class does not lead on alike: tokens of it and of no narrower one; tokens that
     * begin with characters of it, not all of a narrower one, and go on with a byte that is none of
     * SLICE_PLAIN. */
    struct trie own, begun;
    /* For all tokens that begin with characters of the class: the bytes after these. [n]: after n characters;
     * [0]: after any number. */
    struct trie tail[SLICE_CHARS + 1];
};
struct slices {
    struct slice slice[SLICE_CLASSES];
    struct trie rest; /* tokens in none of them */
};

/* entry: all tokens, sorted. */
HELM_MUST_CHECK int slices_build(const struct trie_entry *entry, uint32_t count, uint32_t words,
                                 struct slices *slices, struct helm_err *err);
void slices_free(struct slices *slices);

/* Whether an ASCII byte is in a class. */
bool slice_has_byte(enum slice_class class, uint8_t byte);
/* Adds the bits of the slice's tokens of at most n characters (n >= slice->most: all). */
void slice_add_tokens(const struct slice *slice, uint32_t n, uint32_t words, uint32_t *bits);
