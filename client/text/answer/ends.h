/* The tokens that end a turn or a text, by their names and by what the chat template writes after an answer.
 *
 * Called by the gateway and helm-cli: files name one end of sequence, models have several. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/text/chat.h"
#include "client/text/tokenizer/tokenizer.h"

#define ENDS_MAX 32

struct ends {
    uint32_t ids[ENDS_MAX];
    size_t count;
};

/* `chat` NULL: there is no template. Ids are below `vocab`. */
void ends_find(const struct helm_tokenizer *tokenizer, const struct helm_chat *chat, uint32_t vocab,
               struct ends *ends);
