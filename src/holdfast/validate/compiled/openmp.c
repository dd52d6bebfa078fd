/* A parallel sum of known value. One line: version, threads that took part, threads wanted, the sum and the known sum. */
#include <omp.h>
#include <stdio.h>

int main(void) {
  const long long last = 20000000;
  long long sum = 0, number;
  int threads = 0, wanted = omp_get_max_threads();
#pragma omp parallel
  {
#pragma omp atomic
    threads++;
#pragma omp for schedule(static) reduction(+ : sum)
    for (number = 1; number <= last; number++) sum += number;
  }
  printf("openmp %d threads %d wanted %d sum %lld known %lld\n", _OPENMP, threads, wanted, sum, last * (last + 1) / 2);
  return 0;
}
