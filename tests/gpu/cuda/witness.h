// Has every program say at its end which driver it had, as the Python hook does: nvcc includes this before everything else.
#pragma once
#include <dirent.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

namespace witness {

inline std::string list(const std::set<std::string> &names) {
    std::string text;
    for (const auto &name : names) text += (text.empty() ? "\"" : ", \"") + name + "\"";
    return "[" + text + "]";
}

inline bool starts(const std::string &text, const char *with) { return text.rfind(with, 0) == 0; }

struct Testimony {
    ~Testimony() {
        const char *folder = getenv("WITNESS_FOLDER"), *kind = getenv("WITNESS_KIND"), *ours = getenv("WITNESS_OURS");
        if (!folder || !kind || !ours) return;
        std::set<std::string> libraries, devices;
        std::string complaint;
        char line[4096];
        if (FILE *maps = fopen("/proc/self/maps", "r")) {
            while (fgets(line, sizeof line, maps)) {
                const char *path = strchr(line, '/');
                if (!path) continue;
                std::string name(path, strcspn(path, "\n"));
                std::string base = name.substr(name.rfind('/') + 1);
                if (starts(name, "/dev/nvidia")) devices.insert(name);
                if (starts(base, "libcuda.so") || starts(base, "libnvidia-")) libraries.insert(name);
            }
            fclose(maps);
        }
        if (DIR *open = opendir("/proc/self/fd")) {
            while (dirent *entry = readdir(open)) {
                std::string link = std::string("/proc/self/fd/") + entry->d_name;
                ssize_t length = readlink(link.c_str(), line, sizeof line - 1);
                if (length > 0 && starts(std::string(line, length), "/dev/nvidia")) devices.insert(std::string(line, length));
            }
            closedir(open);
        }
        bool is_remote = !strcmp(kind, "remote");
        for (const auto &library : libraries)
            if (starts(library, ours) != is_remote) complaint = "the " + std::string(kind) + " program has " + library;
        if (is_remote && !devices.empty()) complaint = "the client has NVIDIA's devices open: " + list(devices);
        std::string path = std::string(folder) + "/" + std::to_string(getpid()) + ".json";
        if (FILE *file = fopen(path.c_str(), "w")) {
            std::string said = "null";
            for (auto &c : complaint)
                if (c == '"') c = '\'';
            if (!complaint.empty()) said = "\"" + complaint + "\"";
            fprintf(file, "{\"pid\": %d, \"libraries\": %s, \"devices\": %s, \"complaint\": %s}", getpid(), list(libraries).c_str(),
                    list(devices).c_str(), said.c_str());
            fclose(file);
        }
    }
};

static Testimony testimony;

}  // namespace witness
