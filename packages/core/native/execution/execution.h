// All of the execution layer in one include.
#pragma once

#include "execution/bulk.h"
#include "execution/continues_on.h"
#include "execution/just.h"
#include "execution/on_stream.h"
#include "execution/parallel_for.h"
#include "execution/pool_scheduler.h"
#include "execution/scheduler.h"
#include "execution/sync_wait.h"
#include "execution/task.h"
#include "execution/then.h"
#include "execution/upon_error.h"
#include "execution/when_all.h"
