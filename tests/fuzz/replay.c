// SPDX-License-Identifier: Apache-2.0
/* Runs a fuzz target over files and folders, where libFuzzer is not linked: the corpus as a test.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    size_t size = 0, capacity = 1 << 16;
    uint8_t *data = malloc(capacity);
    for (size_t n; data && (n = fread(data + size, 1, capacity - size, file)) > 0;) {
        size += n;
        if (size == capacity)
            data = realloc(data, capacity *= 2);
    }
    fclose(file);
    if (!data)
        exit(1);
    uint8_t *exact = realloc(data, size ? size : 1); /* a sanitizer sees reads past its end */
    LLVMFuzzerTestOneInput(exact ? exact : data, size);
    free(exact ? exact : data);
    return 1;
}

static size_t replay(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        perror(path);
        exit(1);
    }
    if (!S_ISDIR(info.st_mode))
        return replay_file(path);
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, alphasort);
    size_t done = 0;
    for (int i = 0; i < count; i++) {
        char inner[4096];
        if (entries[i]->d_name[0] != '.' &&
            snprintf(inner, sizeof inner, "%s/%s", path, entries[i]->d_name) < (int)sizeof inner)
            done += replay(inner);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    return done;
}

int main(int argc, char **argv)
{
    size_t done = 0;
    for (int i = 1; i < argc; i++)
        done += replay(argv[i]);
    printf("%zu inputs\n", done);
    return done > 0 ? 0 : 1;
}
