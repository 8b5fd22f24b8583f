// record ENDPOINT NAME STREAM: sends 20 frames to a stream of the daemon's configuration, and prints the
// receipt.

#include "shardwright.h"

#include <cstdint>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct Failure : std::runtime_error {
    explicit Failure(const sw_error &error)
        : std::runtime_error(std::string(error.code) + ": " + error.message + " " + error.hint) {}
};

using Client = std::unique_ptr<sw_client, decltype(&sw_close)>;

static void record(const std::string &endpoint, const std::string &name, const std::string &stream) {
    sw_error error;
    Client client(sw_connect(endpoint.c_str(), nullptr, &error), sw_close);
    if (!client) throw Failure(error);
    sw_acquisition acquisition{};
    acquisition.name = name.c_str(), acquisition.stream = stream.c_str();
    if (sw_open(client.get(), &acquisition, 60000, &error) != 0) throw Failure(error);
    sw_progress progress;
    sw_get_progress(client.get(), &progress, nullptr);
    std::vector<std::uint16_t> pixels(progress.frame_bytes / sizeof(std::uint16_t));
    for (std::uint16_t i = 0; i < 20; i++) {
        pixels.assign(pixels.size(), i);
        if (sw_append(client.get(), pixels.data(), progress.frame_bytes, nullptr, 60000, &error) < 0)
            throw Failure(error);
    }
    sw_receipt receipt;
    if (sw_finish(client.get(), &receipt, 60000, &error) != 0) throw Failure(error);
    std::cout << sw_path(client.get()) << ": " << receipt.frames_durable << " frames durable\n";
}

int main(int argc, char **argv) {
    if (argc != 4) return std::cerr << "usage: " << argv[0] << " ENDPOINT NAME STREAM\n", 2;
    try {
        record(argv[1], argv[2], argv[3]);
    } catch (const Failure &failure) {
        return std::cerr << failure.what() << "\n", 1;
    }
}
