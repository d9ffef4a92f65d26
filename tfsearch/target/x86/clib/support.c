/* The support library: one translation unit. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "support.h"

#include <errno.h>
#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "support_cpu.h"

#include "support_pool.h"

#include "support_time.h"

#include "support_audit.h"

#include "support_probe.h"
