#include "wanted_config.hpp"

#include <unistd.h>

#include <cerrno>

#include "config/cpus.hpp"
#include "config/validation.hpp"
#include "facts.hpp"
#include "kernel_counters.hpp"

namespace pollcore::doctor {
namespace {

/// The CPUs of this host as the runtime sees them, or those of a copied tree.
config::Cpus cpus_of(const Tree& tree) {
    if (tree.is_this_host()) {
        return config::Cpus::of_this_process();
    }
    config::Cpus cpus;
    cpus.allowed = allowed_cpus(tree);
    cpus.online = cpus_in(tree, "/sys/devices/system/cpu/online").value_or(cpus.allowed);
    cpus.waitpkg = has_cpu_flag(tree, "waitpkg").value_or(false);
    return cpus;
}

config::Cpus of_a_large_host() {
    constexpr std::uint32_t kCpus = 8192;
    config::Cpus cpus;
    for (std::uint32_t cpu = 0; cpu < kCpus; ++cpu) {
        cpus.online.insert(cpus.online.end(), cpu);
    }
    cpus.allowed = cpus.online;
    cpus.waitpkg = true;
    return cpus;
}

}  // namespace

WantedConfig wanted_config(const std::filesystem::path& file, bool must_exist, const Tree& tree) {
    if (!must_exist && ::access(file.c_str(), F_OK) != 0 && errno == ENOENT) {
        return {};
    }
    const config::Cpus cpus = cpus_of(tree);
    if (cpus.allowed.empty()) {
        return {.config = config::load(file, of_a_large_host()), .refused = {}};
    }
    try {
        return {.config = config::load(file, cpus), .refused = {}};
    } catch (const ConfigError& error) {
        return {.config = config::load(file, of_a_large_host()), .refused = error.what()};
    }
}

}  // namespace pollcore::doctor
