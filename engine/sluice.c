// SPDX-License-Identifier: Apache-2.0
/* The rest of the public interface: thin calls into the parts. */
#include "engine/sluice.h"

#include <errno.h>

#include "engine/checkpoint.h"
#include "engine/plan_text.h"
#include "engine/session.h"

const char *sl_version(void)
{
    return SLUICE_VERSION;
}

const char *sl_lane_text(int lane)
{
    return sl_lane_name((enum sl_lane)lane);
}

int sl_plan_run(const struct sl_run_options *options, bool json, char **text,
                struct sl_error *error)
{
    struct sl_session session;
    struct sl_engine engine = {0};
    *text = NULL;
    int result = sl_session_open(&session, options, error);
    if (result)
        return result;
    result = sl_engine_plan(&engine, &session.engine, error);
    struct sl_error room = {0};
    if (!result && sl_engine_check_room(&engine, &room))
        sl_log_write(options->log, SL_LOG_WARNING, "as this machine is now, a run is refused: %s",
                     room.message);
    if (!result) {
        *text = json ? sl_plan_json(&engine, &session) : sl_plan_text(&engine, &session);
        if (!*text)
            result = sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory");
    }
    sl_engine_finish(&engine);
    sl_session_close(&session);
    return result;
}

int sl_checkpoint_verify(const char *directory, uint64_t *hash, uint64_t *saved,
                         struct sl_error *error)
{
    struct sl_checkpoint checkpoint;
    int result = sl_checkpoint_read(directory, &checkpoint, error);
    if (!result)
        result = sl_checkpoint_hash(directory, hash, error);
    if (result)
        return result;
    *saved = checkpoint.state_hash;
    if (*hash != *saved)
        result =
            sl_error_set(error, SL_DOMAIN_DATA, -EBADMSG,
                         "%s: saved as %016llx, the files now hold %016llx: changed or damaged",
                         directory, (unsigned long long)*saved, (unsigned long long)*hash);
    return result;
}
