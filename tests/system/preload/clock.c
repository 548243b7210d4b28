/* Another time of day, -DOFFSET=SECONDS away, in each program that loads it first. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *at) {
  int failed = syscall(SYS_clock_gettime, id, at);
  if (!failed && id == CLOCK_REALTIME) at->tv_sec += OFFSET;
  return failed;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
