// Shared by the configuration tests.
//
// The tests check configurations against made-up CPUs instead of the machine's CPUs, so that they behave the same on
// every machine.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "config/validation.hpp"
#include "pollcore/config.hpp"

namespace pollcore::config_texts {

// CPU 2 exists, but this process may not use it.
inline const config::Cpus kCpus{{0, 1, 2, 3}, {0, 1, 3}};

inline std::string message_of(const std::string& text) {
    try {
        (void)config::parse(text, "f.toml", kCpus);
    } catch (const ConfigError& error) {
        return error.what();
    }
    return "accepted";
}

inline std::string message_of(const Config& built) {
    try {
        config::check(built, kCpus, config::Origin());
    } catch (const ConfigError& error) {
        return error.what();
    }
    return "accepted";
}

inline std::string read_file(const std::string& name) {
    std::ifstream file(name);
    EXPECT_TRUE(file) << name;
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

inline std::string sample(const std::string& name) {
    return read_file(POLLCORE_SOURCE_DIR "/config/" + name);
}

// ---- Configurations built in code ----

inline Config small_config(const std::string& device = "d", const std::string& worker = "w") {
    Config built;
    built.devices.emplace_back().name = device;
    built.workers.push_back({.name = worker, .core = 1});
    return built;
}

inline ServiceConfig small_service(std::string name, std::string address) {
    ServiceConfig service;
    service.name = std::move(name);
    service.device = "d";
    service.worker = "w";
    service.address = std::move(address);
    return service;
}

}  // namespace pollcore::config_texts
